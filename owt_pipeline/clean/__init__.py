"""Repair and filtering of text: pure functions over one document at a time."""

import sys

from owt_pipeline import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
