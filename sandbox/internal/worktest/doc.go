// Package worktest contains what tests of workspace mounts share: workspaces
// with everything that is difficult for mounts, changes that commands make in
// them, and the results expected on each backend. Only tests import it.
package worktest
