"""What a run will take is forecast here: bytes, FLOPs, memory and time, without training."""
