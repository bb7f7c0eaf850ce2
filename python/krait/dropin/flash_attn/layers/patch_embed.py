"""Pictures to a sequence of embedded patches, as one matrix product."""

import torch

from krait.ops import apply_linear


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class PatchEmbed(torch.nn.Module):
    """(B, C, H, W) -> (B, patches, embed_dim), or (B, rows, columns, embed_dim) with flatten=False. proj is a Linear over (C, height, width)."""

    def __init__(self, img_size=224, patch_size=16, in_chans=3, embed_dim=768, norm_layer=None, flatten=True, bias=True, fused_bias_fc=False):
        super().__init__()
        self.img_size, self.patch_size, self.flatten = _pair(img_size), _pair(patch_size), flatten
        self.grid_size = tuple(size // patch for size, patch in zip(self.img_size, self.patch_size))
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = torch.nn.Linear(in_chans * self.patch_size[0] * self.patch_size[1], embed_dim, bias=bias)
        self.norm = norm_layer(embed_dim) if norm_layer else torch.nn.Identity()

    def forward(self, x):
        assert tuple(x.shape[2:]) == self.img_size, "the picture is %s, the model's are %s" % (tuple(x.shape[2:]), self.img_size)
        patches = x.unflatten(3, (-1, self.patch_size[1])).unflatten(2, (-1, self.patch_size[0])).permute(0, 2, 4, 1, 3, 5).flatten(3)
        out = apply_linear(self.proj, patches.flatten(1, 2) if self.flatten else patches)
        return self.norm(out)
