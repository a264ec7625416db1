"""A whole deployment on this machine: every part its own process, over localhost gRPC."""

from precad.cli.local.deployment import OWNERS, LocalDeployment, environment_of_parts

__all__ = ["OWNERS", "LocalDeployment", "environment_of_parts"]
