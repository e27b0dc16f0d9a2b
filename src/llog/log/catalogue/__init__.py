"""The segment catalogue: the segments of a log, their states, and the one that holds an epoch and offset.

Compaction, retention and deletion write the records (`llog.log.rewrite.segments`); the catalogue derives in memory
which segment holds which offset of an epoch. A record is not a reference: only index entries, pending appends and the
run in flight keep an object alive. So readers use the index; the catalogue serves operators and maintenance.
"""

from llog.log.catalogue.catalogue import SegmentCatalogue
from llog.log.catalogue.deletion import TopicDeletion, deletion_of, resume_deletions
from llog.log.catalogue.state import CatalogueState, EpochState

__all__ = ["CatalogueState", "EpochState", "SegmentCatalogue", "TopicDeletion", "deletion_of", "resume_deletions"]
