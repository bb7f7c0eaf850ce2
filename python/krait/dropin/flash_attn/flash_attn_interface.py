"""Import path of upstream's attention functions."""


def _pending(name):
    def function(*args, **kwargs):
        raise NotImplementedError("%s: krait has no attention operator yet; use torch's scaled_dot_product_attention" % name)
    function.__name__ = function.__qualname__ = name
    return function


flash_attn_func = _pending("flash_attn_func")
flash_attn_qkvpacked_func = _pending("flash_attn_qkvpacked_func")
flash_attn_kvpacked_func = _pending("flash_attn_kvpacked_func")
flash_attn_varlen_func = _pending("flash_attn_varlen_func")
flash_attn_varlen_qkvpacked_func = _pending("flash_attn_varlen_qkvpacked_func")
flash_attn_varlen_kvpacked_func = _pending("flash_attn_varlen_kvpacked_func")
flash_attn_with_kvcache = _pending("flash_attn_with_kvcache")
