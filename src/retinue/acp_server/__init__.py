"""Server of the Agent Client Protocol: editors drive a Retinue team as their agent."""
