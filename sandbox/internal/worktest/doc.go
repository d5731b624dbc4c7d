//go:build linux

// Package worktest is what the tests of workspace mounts share: workspaces with
// everything that mounts have trouble with, the changes that commands make in
// them, and what must come of it on each backend. Only tests import it.
package worktest
