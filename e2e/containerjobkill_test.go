package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// containerJobKills is how often TestContainerJobsKilled kills each process;
// CONTAINER_JOB_KILLS overrides it.
const containerJobKills = 1

// jobVictims are the processes of a session in a container job.
var jobVictims = []struct {
	name string
	pick func(all []jobListed) jobListed
	// status is how `caisson exec` ends.
	status int
}{
	{"Caisson", caissonOf, 137},
	{"sentry", sentryOf, 125},
	{"gofer", goferOf, 125},
	{"guest", func(all []jobListed) jobListed { return addressSpaces(all)[1] }, 125},
	{"command", func(all []jobListed) jobListed { return addressSpaces(all)[2] }, 137},
}

func caissonOf(all []jobListed) jobListed { return withName(all, "caisson") }
func sentryOf(all []jobListed) jobListed  { return withName(all, "runsc-sandbox") }
func goferOf(all []jobListed) jobListed   { return withName(all, "runsc-gofer") }

// withName returns the process whose command has a name. There must be one.
func withName(all []jobListed, name string) jobListed {
	return all[slices.IndexFunc(all, func(l jobListed) bool {
		command, _, _ := strings.Cut(l.Command, " ")
		return filepath.Base(command) == name
	})]
}

// addressSpaces returns the sentry's processes that have an address space each:
// the one that it forks for the others, the guest's, and those of commands.
func addressSpaces(all []jobListed) []jobListed {
	sentry := sentryOf(all)
	list := slices.DeleteFunc(slices.Clone(all), func(l jobListed) bool { return l.Parent != sentry.PID })
	slices.SortFunc(list, func(a, b jobListed) int { return a.PID - b.PID })
	return list
}

// live starts a command in a sandbox, which goes on until it is killed.
func (p *jobPlace) live(t testing.TB, env ...string) *jobProcess {
	t.Helper()
	j := p.begin(t, env, p.on("exec", "--", "sh", "-c", "echo started; while sleep 0.2; do echo more; done"))
	j.await(t, "started")
	return j
}

// TestContainerJobsKilled kills the processes of a session, one at a time, Caisson
// also at random moments, and at last the container. A Caisson that lives leaves
// nothing. Without it no process stays, and the next Caisson removes the rest.
func TestContainerJobsKilled(t *testing.T) {
	t.Parallel()
	kills := fromEnv(t, "CONTAINER_JOB_KILLS", containerJobKills)
	kit := newJobKit(t)
	for _, job := range containerJobs[:3] {
		t.Run(job.name, func(t *testing.T) {
			t.Parallel()
			p := kit.container(t, job)
			p.exec(t, "true").want(t, 0) // which fills the caches
			for _, v := range jobVictims {
				for range kills {
					run := p.live(t)
					p.sh(t, "kill -9 "+strconv.Itoa(v.pick(p.processes(t)).PID)).want(t, 0)
					out := run.wait(t)
					if out.status != v.status || strings.Contains(out.stderr, "goroutine ") {
						t.Errorf("%s killed: status %d, want %d: %s%s", v.name, out.status, v.status, out.stdout, out.stderr)
					}
					if v.name == "Caisson" {
						p.wantNoProcesses(t)
						p.exec(t, "true").want(t, 0)
					}
					p.wantNothingLeft(t)
				}
			}
			for range 4 * kills {
				p.sh(t, fmt.Sprintf("%s >/tmp/out 2>&1 & sleep %.3f; kill -9 $!; wait", strings.Join(p.on("exec", "--", "id"), " "), rand.Float64()/2)).want(t, 0)
			}
			p.wantNoProcesses(t)
			p.exec(t, "true").want(t, 0)
			p.wantNothingLeft(t)
			run := p.live(t)
			if err := p.api.ContainerKill(t.Context(), p.container, "KILL"); err != nil {
				t.Fatal(err)
			}
			<-run.ended
			p.startContainer(t)
			if len(p.leftovers(t)) == 0 {
				t.Error("control: a killed container leaves nothing to remove")
			}
			p.exec(t, "true").want(t, 0)
			p.wantNothingLeft(t)
		})
	}
}

// wantNoProcesses waits until no process of a session is left in the container.
func (p *jobPlace) wantNoProcesses(t testing.TB) {
	t.Helper()
	eventually(t, "no process is left", time.Minute, func() bool {
		return !slices.ContainsFunc(p.processes(t), func(l jobListed) bool { return l.Name != "jobhelper" })
	})
}
