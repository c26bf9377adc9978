"""This room simulates time: the speed of devices and links, and how long a round takes on them."""
