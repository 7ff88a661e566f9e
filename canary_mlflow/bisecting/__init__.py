"""Names the commit of a team's own history since which its training is worse."""
