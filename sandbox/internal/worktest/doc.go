// Package worktest contains what the tests of workspace mounts share:
// workspaces with everything that is difficult for mounts, the changes that
// commands make in them, and the expected results on each backend. Only tests
// import it.
package worktest
