"""The measured ratios, and the plain PyTorch loop they are measured against."""
