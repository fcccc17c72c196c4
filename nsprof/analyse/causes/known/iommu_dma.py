"""DMA mapping and the IOMMU."""

from __future__ import annotations

import re

from nsprof.analyse.causes.case import Side
from nsprof.analyse.causes.look import machine_differs
from nsprof.analyse.causes.rule import Owned, Rule, Try, words


def _options(side: Side) -> str:
    kernel = side.host.get("kernel")
    line = str(kernel.get("command_line", "")) if isinstance(kernel, dict) else ""
    return " ".join(re.findall(r"\S*(?:iommu|swiotlb)\S*", line)) or ("none" if line else "")


RULE = Rule(
    name="iommu-dma",
    title="buffers are mapped for DMA (IOMMU, bounce buffers)",
    what="Every buffer is entered into the IOMMU's tables and flushed again, or copied through bounce buffers.",
    owns=(
        Owned(
            words(
                "dma_map_* dma_unmap_* dma_direct_* iommu_* __iommu_* intel_iommu_* amd_iommu_* iova_* alloc_iova* "
                "free_iova* swiotlb_* fq_flush_* arm_smmu_* dma_sync_*"
            )
        ),
    ),
    checks=(machine_differs(_options, "IOMMU options of the kernel"),),
    tries=(
        Try(
            "pass-through mode for trusted devices, page pools that keep mappings",
            "iommu=pt on the kernel's command line",
        ),
    ),
    source="Documentation/admin-guide/kernel-parameters.txt (iommu=); drivers/iommu/dma-iommu.c",
    threshold="2 % of the base's cost",
)
