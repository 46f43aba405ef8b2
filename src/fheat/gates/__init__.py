"""Operations on the gates of a network: list, retire or merge them, count their cost, probe them, add them."""
