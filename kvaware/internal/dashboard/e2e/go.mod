// A module of its own, so that the plugin's module does not carry this folder.
module github.com/kvaware/caddy-kvaware/kvaware/internal/dashboard/e2e

go 1.26
