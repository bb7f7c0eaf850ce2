"""Vision transformers of this package's blocks, with timm's names of weights."""

from functools import partial

import torch
from torch import nn

from flash_attn.layers.patch_embed import PatchEmbed
from flash_attn.models._names import rename
from flash_attn.modules.block import Block, StochasticDepth
from flash_attn.modules.mha import MHA
from flash_attn.modules.mlp import FusedMLP, Mlp
from flash_attn.ops.triton.layer_norm import layer_norm_fn


def create_mixer_cls(num_heads, qkv_bias, attn_drop, use_flash_attn, fused_bias_fc, cross_attn=False):
    return partial(MHA, num_heads=num_heads, cross_attn=cross_attn, qkv_proj_bias=qkv_bias, dropout=attn_drop, fused_bias_fc=fused_bias_fc, use_flash_attn=use_flash_attn)


def create_mlp_cls(embed_dim, mlp_ratio, act_layer, fused_mlp):
    hidden = int(embed_dim * mlp_ratio)
    return partial(FusedMLP, hidden_features=hidden) if fused_mlp else partial(Mlp, hidden_features=hidden, activation=act_layer())


def create_block(embed_dim, num_heads, mlp_ratio, qkv_bias, drop_rate, attn_drop_rate, drop_path1, drop_path2, norm_layer, act_layer, use_flash_attn, fused_bias_fc, fused_mlp,
                 fused_dropout_add_ln, layer_idx=None, n_layer=None, last_layer_subset=False):
    crossed = last_layer_subset and layer_idx == n_layer - 1
    return Block(embed_dim, create_mixer_cls(num_heads, qkv_bias, attn_drop_rate, use_flash_attn, fused_bias_fc, cross_attn=crossed),
                 create_mlp_cls(embed_dim, mlp_ratio, act_layer, fused_mlp), norm_cls=norm_layer, prenorm=True, resid_dropout1=drop_rate, resid_dropout2=drop_rate,
                 drop_path1=drop_path1, drop_path2=drop_path2, fused_dropout_add_ln=fused_dropout_add_ln, residual_in_fp32=True)


def init_weights_vit_timm(module, name=""):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif hasattr(module, "init_weights"):
        module.init_weights()


_RULES = [(r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)", r"blocks.\1.mixer.Wqkv.\2"), (r"blocks\.(\d+)\.attn\.proj\.(weight|bias)", r"blocks.\1.mixer.out_proj.\2"), (r"(.*)", r"\1")]


class VisionTransformer(nn.Module):
    """Pictures (B, C, H, W) -> logits (B, num_classes), of a token for the class; its last layer is computed for that token only."""

    def __init__(self, img_size=224, patch_size=16, in_chans=3, num_classes=1000, global_pool="token", embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0, qkv_bias=True,
                 init_values=None, class_token=True, no_embed_class=False, pre_norm=False, fc_norm=None, drop_rate=0.0, attn_drop_rate=0.0, drop_path_rate=0.0, weight_init="",
                 embed_layer=PatchEmbed, norm_layer=None, act_layer=None, use_flash_attn=False, fused_bias_fc=False, fused_mlp=False, fused_dropout_add_ln=False):
        super().__init__()
        assert global_pool == "token" and class_token, "only the token of the class is pooled"
        assert init_values is None and weight_init == "" and fc_norm is None and not pre_norm, "init_values, weight_init, fc_norm and pre_norm are not supported"
        norm_layer, act_layer = norm_layer or partial(nn.LayerNorm, eps=1e-6), act_layer or nn.GELU
        self.num_classes, self.global_pool, self.num_features, self.embed_dim = num_classes, global_pool, embed_dim, embed_dim
        self.num_prefix_tokens, self.no_embed_class, self.fused_dropout_add_ln = 1, no_embed_class, fused_dropout_add_ln
        own = dict(fused_bias_fc=fused_bias_fc) if embed_layer is PatchEmbed else {}
        self.patch_embed = embed_layer(img_size=img_size, patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, bias=True, **own)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patch_embed.num_patches + (0 if no_embed_class else 1), embed_dim))
        drops = torch.linspace(0, drop_path_rate, depth).tolist()
        # A block drops, adds and norms before its layer: what timm's drops after it is the next one's.
        self.blocks = nn.ModuleList([
            create_block(embed_dim, num_heads, mlp_ratio, qkv_bias, drop_rate, attn_drop_rate, drops[i - 1] if i else 0.0, drops[i], norm_layer, act_layer, use_flash_attn,
                         fused_bias_fc, fused_mlp, fused_dropout_add_ln, layer_idx=i, n_layer=depth, last_layer_subset=True) for i in range(depth)])
        self.dropout, self.drop_path, self.norm = nn.Dropout(drop_rate), StochasticDepth(drops[-1]), norm_layer(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.init_weights()

    def init_weights(self, mode=""):
        assert mode == "", "only timm's first way"
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if module is not self:
                self._init_weights(module)

    def _init_weights(self, m):
        init_weights_vit_timm(m)

    @torch.jit.ignore
    def no_weight_decay(self):
        return {"pos_embed", "cls_token"}

    def _pos_embed(self, x):
        """The class's token before the patches, and positions: of all, or of the patches alone (no_embed_class)."""
        first = self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat((first, x + self.pos_embed), dim=1) if self.no_embed_class else torch.cat((first, x), dim=1) + self.pos_embed

    def _finish(self, x, residual):
        if not self.fused_dropout_add_ln:
            return self.norm((self.drop_path(self.dropout(x)) + residual).to(self.norm.weight.dtype))
        drops = self.drop_path.p > 0 and self.training
        rowscale = self.drop_path(torch.ones(x.shape[:-1], device=x.device, dtype=x.dtype)) if drops else None
        return layer_norm_fn(x, self.norm.weight, self.norm.bias, residual=residual, eps=self.norm.eps, dropout_p=self.dropout.p if self.training else 0.0, rowscale=rowscale)

    def forward_features(self, x, all_tokens=True):
        """-> normed tokens (B, S, width), or (B, 1, width): the class's."""
        x, residual = self._pos_embed(self.patch_embed(x)), None
        for block in self.blocks[:-1]:
            x, residual = block(x, residual)
        x, residual = self.blocks[-1](x, residual, mixer_subset=None if all_tokens else slice(0, 1))
        return self._finish(x, residual)

    def forward_head(self, x, pre_logits=False):
        return x[:, 0] if pre_logits else self.head(x[:, 0])

    def forward(self, x):
        return self.forward_head(self.forward_features(x, all_tokens=False))

    def load_state_dict(self, state_dict, strict=True):
        """Weights of this class or of timm's: its convolution over patches, and one projection for queries, keys and values in all layers."""
        found = rename(state_dict, _RULES)
        found["patch_embed.proj.weight"] = found["patch_embed.proj.weight"].flatten(1)
        last = "blocks.%d.mixer." % (len(self.blocks) - 1)
        for kind in ("weight", "bias"):
            if last + "Wqkv." + kind in found:
                joined = found.pop(last + "Wqkv." + kind)
                found[last + "Wq." + kind], found[last + "Wkv." + kind] = joined[:self.embed_dim], joined[self.embed_dim:]
        return super().load_state_dict(found, strict=strict)


def vit_base_patch16_224(pretrained=False, **kwargs):
    assert not pretrained, "weights are not downloaded: load_state_dict() takes timm's"
    return VisionTransformer(patch_size=16, embed_dim=768, depth=12, num_heads=12, **kwargs)
