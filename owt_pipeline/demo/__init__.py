"""The demo: a small web of its own, a dump that links to it, and the truth of what should happen to every link."""
