"""The commands of `owt`, a module each: `build_parser()` gives its flags, `main(argv)` runs it."""
