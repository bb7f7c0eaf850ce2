"""What upstream's modules import from other libraries and clients then take from them: `from mamba_ssm.utils.generation import *`,
`from flash_attn.bert_padding import rearrange`."""

import gc  # noqa: F401
import math  # noqa: F401
import time  # noqa: F401
from collections import namedtuple  # noqa: F401
from dataclasses import dataclass, field  # noqa: F401
from functools import partial  # noqa: F401
from typing import Callable, Optional, Sequence, Union  # noqa: F401

import torch  # noqa: F401
import torch.nn as nn  # noqa: F401
import torch.nn.functional as F  # noqa: F401
from torch import Tensor  # noqa: F401

try:
    from einops import rearrange, repeat  # noqa: F401
except ImportError:
    pass  # upstream needs einops, krait does not
