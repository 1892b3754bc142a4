"""The backend of PyTorch's own optimizers, `torch.optim`: all that knows them."""
