"""The start-up hook: where it attaches to SGLang, what it validates, and what it confirms after loading."""
