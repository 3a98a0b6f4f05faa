from importlib.util import find_spec

if find_spec("torch") is None:
    # If the error has the package's own name, `python -m trainer.…` prints one line and no
    # traceback.
    raise ImportError(
        "the trainer needs PyTorch 2.9 or later, which is not installed: pip install torch "
        "safetensors tensorboard",
        name=__name__,
    )
