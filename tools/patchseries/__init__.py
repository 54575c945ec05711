"""The patch series for SGLang: manifest, application, checks. Standard library and git only."""
