//go:build linux

package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// onTerminal runs a verb on the host with a controlling terminal, a pair that
// is made for it.
func onTerminal(ctx context.Context, e *env, args ...string) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer master.Close()
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return "", err
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return "", err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer slave.Close()
	cmd := exec.CommandContext(ctx, e.target.Probe, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = slave, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("positive control: %q on a terminal: %w", args, err)
	}
	return out.String(), nil
}
