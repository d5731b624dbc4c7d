package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// containerJobBombs is how many fork bombs TestContainerJobForkBombs starts;
// CONTAINER_JOB_BOMBS overrides it.
const containerJobBombs = 2

// bombedJob has a limit of processes that is near to what its sandbox may use.
var bombedJob = containerJob{"bombed", jobUser, func(_ *testing.T, h *container.HostConfig) { h.PidsLimit = new(int64(256)) }}

const forkBomb = `echo started; bomb() { bomb | bomb & bomb; }; bomb`

// A fork bomb reaches the sandbox's limit of processes and not the job's, which
// would end gVisor's kernel.
func TestContainerJobForkBombs(t *testing.T) {
	t.Parallel()
	bombs := fromEnv(t, "CONTAINER_JOB_BOMBS", containerJobBombs)
	kit := newJobKit(t)
	p := kit.container(t, bombedJob)
	for n := range bombs {
		out := p.exec(t, forkBomb, "--timeout", "3s")
		if out.status == 125 || strings.Contains(out.stderr, "sandbox lost") {
			t.Errorf("bomb %d of %d: status %d, %s", n+1, bombs, out.status, tail(out.stderr, 10))
		}
		if !strings.Contains(out.stderr, "annot fork") {
			t.Errorf("control: bomb %d did not reach the limit: status %d, %s", n+1, out.status, tail(out.stderr, 10))
		}
	}
	p.wantNothingLeft(t)
}

// A fork that the limit refuses makes no address space, which would be a process
// of the host, and stay for later ones.
func TestContainerJobAddressSpaces(t *testing.T) {
	t.Parallel()
	p := newJobKit(t).container(t, containerJob{"user", jobUser, nil})
	const most = 64
	// A bomb may have ended before a busy machine lists its processes. These stay until the
	// pipe closes, and start no program, which would need a second address space.
	const full = `echo started; sleep 15 | { exec 3<&0; for i in 1 2 3 4 5 6 7 8 9; do (while :; do read _ <&3 & done); done; }`
	run := p.begin(t, nil, p.on("exec", "--timeout", "2m", "--pids", fmt.Sprint(most), "--", "sh", "-c", full))
	run.await(t, "started")
	spaces := 0
	for {
		all := p.processes(t)
		if !slices.ContainsFunc(all, func(l jobListed) bool { return strings.Contains(l.Command, "runsc-sandbox ") }) {
			break
		}
		spaces = max(spaces, len(addressSpaces(all)))
	}
	out := run.wait(t)
	if !strings.Contains(out.stderr, "annot fork") || spaces < most/2 {
		t.Errorf("control: with %d address spaces the limit was not reached: status %d, %s", spaces, out.status, tail(out.stderr, 10))
	}
	// One is gVisor's own, and one the guest's. An exec needs a second for a while.
	if spaces > most+4 {
		t.Errorf("%d address spaces for %d processes", spaces, most)
	}
}
