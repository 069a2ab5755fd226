"""An exchange between processes for the stand-in device. Like NCCL it refuses tensors of the CPU."""

from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor


class _Done(dist._Work):
    """A finished exchange; its result is in the caller's tensors."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class Exchange(dist.ProcessGroup):
    """Copies what is on the device to the host, has gloo exchange it, and copies the result back."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "standin"

    @property
    def _device_types(self) -> list[torch.device]:
        """Where torch puts objects that are exchanged."""
        return [torch.device("standin")]

    def _on_host(self, tensors: list[Tensor]) -> list[Tensor]:
        if elsewhere := {str(tensor.device) for tensor in tensors if tensor.device.type != "standin"}:
            raise RuntimeError(f"the exchange of the stand-in got a tensor on {', '.join(sorted(elsewhere))}")
        return [tensor.cpu() for tensor in tensors]

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> _Done:
        hosted = self._on_host(tensors)
        self._gloo.allreduce(hosted, options or dist.AllreduceOptions()).wait()
        return self._back(tensors, hosted)

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> _Done:
        hosted = self._on_host(tensors)
        self._gloo.broadcast(hosted, options).wait()
        return self._back(tensors, hosted)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> _Done:
        hosted = [self._on_host(each) for each in outputs]
        self._gloo.allgather(hosted, self._on_host(inputs), options or dist.AllgatherOptions()).wait()
        for each, found in zip(outputs, hosted, strict=True):
            self._back(each, found)
        return _Done(outputs)

    def barrier(self, options: Any = None) -> _Done:
        self._gloo.barrier().wait()
        return _Done([])

    @staticmethod
    def _back(tensors: list[Tensor], hosted: list[Tensor]) -> _Done:
        with torch.no_grad():
            for tensor, found in zip(tensors, hosted, strict=True):
                tensor.copy_(found)
        return _Done(tensors)


class StandInDDP(DDPStrategy):
    """One process per stand-in device."""

    def _determine_ddp_device_ids(self) -> None:
        return None  # Fabric opens a CUDA stream for a device with a number

    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        if not dist.is_initialized():
            dist.init_process_group("standin")  # with a device's number torch asks for a backend in C++


def strategy(accelerator: Any, environment: Any, **options: Any) -> StandInDDP:
    """Fabric's strategy for two processes with this exchange; `options` are those of DDP."""
    if "standin" not in dist.Backend._plugins:
        dist.Backend.register_backend("standin", Exchange, devices=["standin"])
    devices = [torch.device("standin", index) for index in range(2)]
    return StandInDDP(accelerator=accelerator, parallel_devices=devices, cluster_environment=environment, **options)
