"""Named questions to an SGLang source tree, one module per subject; imported when first asked."""
