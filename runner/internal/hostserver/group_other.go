//go:build !unix

package hostserver

import "os/exec"

// setGroup does nothing: there are no process groups.
func setGroup(*exec.Cmd) {}

// killGroup ends the program alone.
func killGroup(cmd *exec.Cmd, _ bool) { _ = cmd.Process.Kill() }
