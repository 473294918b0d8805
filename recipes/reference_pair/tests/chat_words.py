"""A small vocabulary for the chat task."""

from __future__ import annotations

from recipes.reference_pair.tasks.base import Words


def listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = Words(
    nouns=listed(
        """ladder engine mirror lantern basket anchor pillow hammer kettle ribbon helmet trumpet blanket candle button
        barrel puppet saddle whistle buffer parser module token thread socket widget cursor iterator pointer bottle"""
    ),
    adjectives=listed(
        """quiet heavy narrow gentle useful ancient common brave modern simple early fresh cheap loud strange private
        local recent empty explicit formal global hidden implicit internal usual optional unique valid native"""
    ),
    verbs=listed(
        """collect return open close wait start stop print call check load parse match join filter handle register
        remove insert update sort split copy move count walk listen answer travel work"""
    ),
    identifiers=listed(
        """read_lines parse_args max_size get_name load_data is_valid set_value find_all copy_tree make_dirs run_tests
        split_path join_words max_retries time_limit file_name encode_text sort_keys chunk_size add_item default_port
        log_level read_timeout buffer_size open_url walk_tree base_dir clean_up next_token value"""
    ),
)
