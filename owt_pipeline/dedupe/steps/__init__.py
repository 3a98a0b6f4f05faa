"""The work of each of dedupe's steps on one key: a shard, a partition or a group of components.

    hashes      a shard's texts            -> hashes of the normalised texts
    exact       a partition's text hashes  -> which document repeats which; then, per shard, the rows that go
    sketches    a shard's texts that stay  -> sketches
    edges       a band's bucket partition  -> edges between candidates
    components  all edges                  -> per shard, the rows that are candidates, their component and group
    shingles    a shard's candidates       -> their shingle sets, by group
    proofs      a group of components      -> which document repeats which, verified
    decisions   exact and proofs           -> per shard, the decisions

Text is read in three of them, shard by shard; only ids, hashes and counts go from shard to shard.
"""
