"""Blocks made of the operators: FHEAT, KAN3D, stages, resampling, and the attention blocks of Light-UNETR."""

from fheat.nn.blocks import FHEATBlock as FHEATBlock
from fheat.nn.blocks import FHEATStage as FHEATStage
from fheat.nn.blocks import LightBlock as LightBlock
from fheat.nn.fheat import FHEAT as FHEAT
from fheat.nn.fheat import KAN3D as KAN3D
from fheat.nn.fheat import GELUMixer as GELUMixer

__all__ = ["FHEAT", "KAN3D", "FHEATBlock", "FHEATStage", "GELUMixer", "LightBlock"]
