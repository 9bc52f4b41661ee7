"""Who answers inside a subagent."""
