"""Measure the fused MoE sum on this machine, and read what was measured before.

Nothing here imports torch, triton or SGLang at module level, so the rules may ask freely:

    profile.measured_ratio(device, fingerprint, shape, tokens)   this machine's own profile, else None
    profile.shipped_results()                                    what ships with the package, its device named
    profile.load_profile(device, fingerprint, shape)             the whole profile, None where nobody measured
    product.run(model_config, tp=4)                              measure now (needs a GPU and an installed SGLang)
"""
