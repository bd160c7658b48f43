"""A real Kubernetes on a rack: programs built from their modules, a bed of kubelets, and tests."""
