"""What runs came to, as tables."""
