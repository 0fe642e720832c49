"""Figures of a reconstruction and of what is sent, and the readers that attacks and leak meters share."""

from .images import mse as mse
from .images import ncc as ncc
from .images import psnr as psnr
from .images import scores as scores
from .images import ssim as ssim
from .scatter import scatter_ratio as scatter_ratio
