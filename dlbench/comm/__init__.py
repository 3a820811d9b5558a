"""Communication backends: the `Communicator` protocol, its implementations, and the payloads that check them."""
