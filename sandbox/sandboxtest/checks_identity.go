package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func identityChecks() []check {
	return []check{
		{name: "identities out of range are refused", run: checkIdentityRange},
		{name: "another identity is out of reach", run: checkIdentities},
		{name: "commands of another identity end", run: checkIdentityEnds},
		{name: "another identity makes no files in the workspace", shared: true, run: checkIdentityFiles},
	}
}

func (e *env) runAs(ctx context.Context, identity int, args ...string) (result, error) {
	return e.run(ctx, sandbox.Command{Argv: probeArgv(args...), Identity: identity, Dir: sandbox.WorkspaceDir})
}

func checkIdentityRange(ctx context.Context, e *env) error {
	for _, n := range []int{-1, sandbox.MaxIdentity + 1} {
		if _, err := e.runAs(ctx, n, "exit", "0"); !isInvalid(err) {
			return errorf("identity %d: error %w, want ErrInvalid", n, err)
		}
	}
	want := sandbox.MaxIdentity + 1
	if e.target.SingleUID {
		want = 1
		if _, err := e.runAs(ctx, 1, "exit", "0"); !errors.Is(err, sandbox.ErrUnsupported) {
			return errorf("identity 1, where there is one: error %w, want ErrUnsupported", err)
		}
		if err := attestsLoss(e, "identity"); err != nil {
			return err
		}
	}
	if n := e.sb.Attestation().Identities; n != want {
		return fmt.Errorf("%d identities are attested, want %d", n, want)
	}
	return nil
}

// ownReach is what a process can do to another of the same identity in every
// kernel.
var ownReach = []string{"environ", "descriptor", "root", "file", "home", "stop", "continue", "terminate"}

// checkIdentities has each of two identities attack a process of the other, and
// a third one attack both. The controls attack under one identity. The last
// identity also differs, and reaches the guest no more than the agent's
// commands do.
func checkIdentities(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "identity")
	}
	const last = sandbox.MaxIdentity
	users := map[int]int{}
	for _, n := range []int{0, 1, last} {
		f, err := factsAs(ctx, e, n)
		if err != nil {
			return err
		}
		if err := e.checkUnprivileged(f); err != nil {
			return fmt.Errorf("identity %d: %w", n, err)
		}
		if other, ok := users[f.UID]; ok || n != 0 && f.GID != f.UID {
			return fmt.Errorf("identity %d is user %d and group %d, as identity %d", n, f.UID, f.GID, other)
		}
		users[f.UID] = n
	}
	for _, attack := range []struct{ victim, attacker int }{{1, 0}, {0, 1}, {1, last}, {0, 0}, {1, 1}} {
		reached, err := attackIdentity(ctx, e, attack.victim, attack.attacker)
		if err != nil {
			return err
		}
		if attack.victim != attack.attacker && len(reached) > 0 {
			return fmt.Errorf("identity %d reaches of a process of identity %d: %q", attack.attacker, attack.victim, reached)
		}
		if missing := subtract(ownReach, reached); attack.victim == attack.attacker && len(missing) > 0 {
			return fmt.Errorf("positive control: under the one identity %d, not reached: %q", attack.victim, missing)
		}
	}
	r, err := e.runAs(ctx, 1, "attack-guest")
	if err == nil && (r.out != "" || !r.Status.Success()) {
		err = fmt.Errorf("identity 1 reaches of the guest: %q, %s", splitLines(r.out), r.Status)
	}
	return err
}

func factsAs(ctx context.Context, e *env, identity int) (probing.Facts, error) {
	r, err := e.runAs(ctx, identity, "facts")
	return parseOutput[probing.Facts](r.out, err)
}

// attackIdentity returns what a command of one identity can do to a process of
// another, which has a secret in its environment and in a file in its home.
func attackIdentity(ctx context.Context, e *env, victim, attacker int) ([]string, error) {
	word := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	home := sandbox.IdentityHome(victim)
	p, w, err := startReady(runCtx, ctx, e, sandbox.Command{
		Argv: probeArgv("guard"), Env: sandbox.SetVariables(nil, []string{"HOME=" + home, "IDENTITY_SECRET=" + word}), Identity: victim, Grace: testGrace,
	})
	if err != nil {
		return nil, err
	}
	place := strings.Fields(w.String())
	if len(place) != 4 || place[1] != filepath.Join(home, "secret") {
		return nil, fmt.Errorf("a process of identity %d reports %q", victim, place)
	}
	r, err := e.runAs(ctx, attacker, "reach", place[0], place[1], place[2], word)
	if err != nil {
		return nil, err
	}
	if !r.Status.Success() {
		return nil, fmt.Errorf("identity %d: %s, stderr %q", attacker, r.Status, r.errOut)
	}
	cancel()
	exit, err := waitProcess(ctx, p)
	if err == nil && exit.Kill.Left != 0 {
		err = fmt.Errorf("%d processes of identity %d are left", exit.Kill.Left, victim)
	}
	return splitLines(r.out), err
}

// checkIdentityEnds leaves daemons that ignore SIGTERM, alone and beside a
// command of the agent's, which must survive.
func checkIdentityEnds(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "identity")
	}
	beside, cancelBeside := context.WithCancel(ctx)
	defer cancelBeside()
	var other sandbox.Process
	for _, alone := range []bool{true, false} {
		if !alone {
			var err error
			if other, _, err = startReady(beside, ctx, e, sandbox.Command{Argv: probeArgv("sleep"), Grace: testGrace}); err != nil {
				return err
			}
		}
		for _, stay := range []bool{true, false} {
			if err := endDaemons(ctx, e, stay); err != nil {
				return fmt.Errorf("cancelled %t, alone %t: %w", stay, alone, err)
			}
		}
	}
	cancelBeside()
	exit, err := waitProcess(ctx, other)
	if err == nil && exit.Status.Signal != int(syscall.SIGTERM) {
		err = fmt.Errorf("the agent's command beside it ended with %s", exit.Status)
	}
	return err
}

// endDaemons runs a command of identity 1 that leaves daemons and then ends or,
// with stay, waits to be cancelled.
func endDaemons(ctx context.Context, e *env, stay bool) error {
	mark := newMarker()
	cmd := sandbox.Command{Argv: probeArgv("daemons", "3", mark), Identity: 1, Grace: testGrace}
	var exit sandbox.Exit
	if stay {
		runCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		cmd.Argv = append(cmd.Argv, "stay")
		p, _, err := startReady(runCtx, ctx, e, cmd)
		if err != nil {
			return err
		}
		cancel()
		if exit, err = waitProcess(ctx, p); err != nil {
			return err
		}
	} else {
		r, err := e.run(ctx, cmd)
		if err != nil {
			return err
		}
		exit = r.Exit
	}
	r, err := e.runAs(ctx, 1, "ps", mark)
	if err == nil && (exit.Kill.Left != 0 || exit.Kill.Killed < 3 || strings.TrimSpace(r.out) != "0") {
		err = fmt.Errorf("killed %d, left %d, and %q run", exit.Kill.Killed, exit.Kill.Left, r.out)
	}
	return err
}

// checkIdentityFiles has another identity write where the workspace is open to
// everyone. Unless attested, no file on the host may belong to a user unknown
// there. It can read by the bits for others, and its temporary files go
// elsewhere.
func checkIdentityFiles(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "identity")
	}
	open := filepath.Join(e.workspace, "open")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777), os.WriteFile(filepath.Join(open, "text"), []byte("text"), 0o644)); err != nil {
		return err
	}
	defer os.RemoveAll(open)
	r, err := e.runAs(ctx, 1, "read", "open/text")
	if err != nil || r.out != "text" {
		return errorf("identity 1 reads %q %q: %w", r.out, r.errOut, err)
	}
	if r, err = e.runAs(ctx, 1, "touch", "open/made"); err != nil {
		return err
	}
	entries, err := os.ReadDir(open)
	if err != nil {
		return err
	}
	attested := slices.ContainsFunc(e.sb.Attestation().Lost, func(s string) bool { return strings.Contains(s, "identity") })
	if len(entries) != 1 && !attested {
		return fmt.Errorf("identity 1 made a file in the workspace, which is not attested: %s", entries[0])
	}
	if made := r.Status.Success(); made != (len(entries) != 1) {
		return fmt.Errorf("identity 1 was told %s, and the host has %d files", r.Status, len(entries))
	}
	if out, err := e.runAs(ctx, 0, "touch", "open/made"); err != nil || !out.Status.Success() && !attested {
		return errorf("positive control: the agent's command: %s %q, %w", out.Status, out.errOut, err)
	}
	r, err = e.run(ctx, sandbox.Command{Argv: probeArgv("env"), Identity: 1})
	if err != nil {
		return err
	}
	if err := containsVariables(r.out, "HOME="+sandbox.IdentityHome(1), "TMPDIR="+sandbox.IdentityTmp(1), "PWD="+sandbox.IdentityHome(1)); err != nil {
		return fmt.Errorf("identity 1: %w", err)
	}
	if r, err = e.runAs(ctx, 1, "touch", sandbox.IdentityTmp(1)+"/made"); err == nil && !r.Status.Success() {
		err = fmt.Errorf("identity 1 can't write its TMPDIR: %q", r.errOut)
	}
	return err
}
