"""The paper's numerical section: studies, figures, claims and report with one command."""
