"""The segment catalogue: what segments a log has, in which state, and which of them holds (epoch, offset).

The records are those that compaction, retention and deletion write (`llog.log.rewrite.segments`); per epoch the
catalogue derives in memory which segment answers for which offset. A record is not a reference: only index entries,
pending appends and the run in flight keep an object alive, so readers of records go by the index, and this is for those
who look after segments.
"""

from llog.log.catalogue.catalogue import SegmentCatalogue
from llog.log.catalogue.deletion import TopicDeletion, deletion_of, resume_deletions
from llog.log.catalogue.epoch_state import EpochState
from llog.log.catalogue.state import CatalogueState

__all__ = ["CatalogueState", "EpochState", "SegmentCatalogue", "TopicDeletion", "deletion_of", "resume_deletions"]
