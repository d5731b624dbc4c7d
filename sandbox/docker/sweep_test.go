package docker

import (
	"net/http"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// The labels, state and age of a container decide if a sweep may remove it. If
// its owner can't be seen, a running one stays for ever, and a stopped one
// until its lease is over.
func TestAbandoned(t *testing.T) {
	state := t.TempDir()
	instance, err := ownership.Instance(state)
	must(t, err)
	self, err := ownership.Self(instance)
	must(t, err)
	b := &Backend{self: self}
	change := func(f func(*ownership.Identity)) ownership.Identity {
		id := self
		f(&id)
		return id
	}
	dead := change(func(id *ownership.Identity) { id.PID = 1<<22 + 1 }) // above every pid_max
	reused := change(func(id *ownership.Identity) { id.Start++ })
	restarted := change(func(id *ownership.Identity) { id.Boot = "another" })
	elsewhere := change(func(id *ownership.Identity) { id.Boot, id.Instance = "another", "another" })
	nested := change(func(id *ownership.Identity) { id.PIDNamespace = "pid:[1]" })
	over := func(id ownership.Identity) ownership.Identity {
		id.Lease = time.Now().Add(-time.Second)
		return id
	}
	skewed := func(id ownership.Identity) ownership.Identity { // its clock is an hour behind
		id.Lease = id.Lease.Add(-time.Hour)
		return id
	}
	const running, exited, created, paused = container.StateRunning, container.StateExited, container.StateCreated, container.StatePaused
	for _, tt := range []struct {
		name  string
		id    ownership.Identity
		state container.ContainerState
		age   time.Duration
		want  bool
	}{
		{"own, running", self, running, time.Hour, false},
		{"own, stopped", self, exited, time.Hour, false},
		{"own, lease over", over(self), exited, time.Hour, false},
		{"own, being started", self, created, time.Minute, false},
		{"own, never started", self, created, time.Hour, true},
		{"dead, running", dead, running, 0, true},
		{"dead, paused", dead, paused, 0, true},
		{"number reused", reused, running, 0, true},
		{"before the machine's restart", restarted, running, 0, true},
		{"another machine's, running", over(elsewhere), running, time.Hour, false},
		{"another machine's, stopped", elsewhere, exited, time.Hour, false},
		{"another machine's, being started", elsewhere, created, time.Hour, false},
		{"another machine's, stopped, clocks apart", skewed(elsewhere), exited, time.Hour, false},
		{"another machine's, stopped, lease over", over(elsewhere), exited, time.Hour, true},
		{"another PID namespace's, running", over(nested), running, time.Hour, false},
		{"another PID namespace's, lease over", over(nested), exited, time.Hour, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := b.isOrphan(tt.id, tt.state, time.Now().Add(-tt.age)); got != tt.want {
				t.Errorf("abandoned: %v, want %v", got, tt.want)
			}
		})
	}
}

// A container that the engine lists as dead but doesn't know is neither listed
// nor swept.
func TestForgottenContainer(t *testing.T) {
	b := newFakeBed(t)
	dead := b.backend.self
	dead.PID = 1<<22 + 1
	summary := func(id, session string) container.Summary {
		return container.Summary{ID: id, State: container.StateDead, Labels: dead.Labels(session)}
	}
	known, forgotten := newSession(), newSession()
	b.engine.containers["known"] = &fakeContainer{id: "known", config: container.CreateRequest{Config: &container.Config{}, HostConfig: &container.HostConfig{}}}
	b.engine.answers["GET /containers/json"] = answer(http.StatusOK, []container.Summary{summary("known", known), summary("forgotten", forgotten)})
	list, err := b.backend.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Session != known {
		t.Errorf("listed %+v, %v", list, err)
	}
	swept, err := b.backend.Sweep(t.Context())
	if err != nil || len(swept) != 1 || swept[0].Session != known {
		t.Errorf("swept %+v, %v", swept, err)
	}
}
