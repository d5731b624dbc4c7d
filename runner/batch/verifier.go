package batch

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

type verification struct {
	*Trials
	trial Trial
	step  *task.Step
	// dir has the step's files, and gets the verifier's unless out is set.
	dir, out string
	place    place // the agent's
	acted    bool
	// agentClosed waits until the agent's session has ended and its files are in dir,
	// and returns its error. Nil means that it has.
	agentClosed func() error
	// control means that the verifier gets nothing of the agent's.
	control bool

	rewards  map[string]float64
	sessions []string
	left     leftOut
	doubts   doubts
}

var errVerifierTime = errors.New("the verifier reached its time")

func (v *verification) verifyStep(ctx context.Context) error {
	v.out = cmp.Or(v.out, v.dir)
	if v.step.Verifier.Tests == "" && v.step.Verifier.Command == "" {
		return &failure{class: UnverifiedOutcome, err: errors.New("the task has no verifier")}
	}
	err := v.runOnce(ctx)
	if v.isSettled(err) {
		return v.explainTime(err)
	}
	known, controlErr := v.confirmDoubts(ctx)
	if controlErr != nil {
		return controlErr
	}
	if len(known) == 0 {
		return v.explainTime(err)
	}
	err = v.runOnce(ctx)
	if v.isSettled(err) {
		return v.explainTime(err)
	}
	maps.DeleteFunc(v.doubts, func(what, _ string) bool { return known[what] == "" })
	return v.judgeDoubts(v.explainTime(err))
}

// isSettled reports whether a verification is beyond doubt.
func (v *verification) isSettled(err error) bool {
	return len(v.doubts) == 0 || errors.As(err, new(*infraError)) || err == nil && isPass(v.rewards)
}

// explainTime turns a reached time limit into a failure. It returns other errors
// unchanged.
func (v *verification) explainTime(err error) error {
	if errors.Is(err, errVerifierTime) {
		return &failure{class: VerifierTimeout, err: fmt.Errorf("%w of %s", err, v.step.Verifier.Time)}
	}
	return err
}

func (v *verification) runOnce(ctx context.Context) (err error) {
	v.rewards, v.doubts = nil, doubts{}
	verifier := v.step.Verifier
	environment, p := v.trial.Definition.Environment, v.place
	if verifier.Separate {
		environment = verifier.Environment
		if p, err = v.places.preparePlace(ctx, environment); err != nil {
			return &infraError{ImageUnavailable, err}
		}
	}
	dir := filepath.Join(v.out, VerifierDir)
	if err := errors.Join(workspace.RemoveTree(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return &infraError{Machine, err}
	}
	var mounts []sandbox.Mount
	var mountErr error
	s, o, err := v.openSession(ctx, p, environment, verifier.Network, func(o *runner.Options) {
		o.Task, o.Profiles = "verify: "+v.trial.Task, nil
		o.Resources.CommandTime = max(o.Resources.CommandTime, verifier.Time)
		o.Memory = nil
		o.Declared = nil
		o.Tools = nil
		o.Skills = runner.SkillOptions{}
		o.Workers = runner.WorkerOptions{}
		o.Caches = runner.CacheOptions{}
		o.Env = slices.Concat(o.Env, p.caches(o.Env).env)
		if !p.root && verifier.Tests != "" {
			mounts, mountErr = runner.OpenMounts([]runner.UserMount{{From: verifier.Tests, To: testsDir, ReadOnly: true}}, o.Workspace, p.target, o.Mode, runner.Protected{})
			o.Mounts = mounts
		}
	})
	if err != nil {
		return &infraError{classOf(err), errors.Join(err, runner.CloseMounts(mounts))}
	}
	v.sessions = append(v.sessions, o.Dir.Session)
	defer func() {
		to := filepath.Join(v.out, VerifierSessionDir)
		_, closed := closeSession(s, o, to, v.acted, VerifierCrashed)
		if closed == nil && (v.control || err != nil || !isPass(v.rewards)) {
			closed = v.addConnections(to)
		}
		err = errors.Join(err, closed, runner.CloseMounts(mounts))
	}()
	if mountErr != nil {
		return &infraError{Environment, mountErr}
	}
	if err := v.bringFiles(ctx, s, p); err != nil {
		return err
	}
	if p.root && verifier.Command == "" {
		return v.runTests(ctx, s, p, dir)
	}
	return v.runCommand(ctx, s, p, dir)
}

// bringFiles brings the agent's files, and then what the agent must not have seen or
// changed: a fresh directory for the reward, and the tests. No symlink of the agent
// leads to these.
func (v *verification) bringFiles(ctx context.Context, s *runner.Session, p place) error {
	v.left = leftOut{}
	caches := p.caches(slices.Concat(v.o.Session.Env, v.trial.Definition.Environment.Env))
	dirs := p.changedDirs()
	hidden := func(h *tar.Header) bool {
		name := changedName(h)
		return !slices.ContainsFunc(dirs, func(dir string) bool { return isWithin(name, strings.TrimSuffix(dir, "/")) }) || p.root && isHarness(name) || caches.contains(h)
	}
	if !p.root && v.control {
		return nil
	}
	if !p.root {
		return v.blame(restoreState(ctx, s, filepath.Join(v.dir, StateFile), hidden, append(dirs, imageDir), nil, &v.left))
	}
	var artifacts []upload
	if v.step.Verifier.Separate && !v.control {
		var err error
		if artifacts, err = resolveUploads(ctx, s, v.declaredArtifacts(p)); err != nil {
			return blame(false, Environment, err) // nothing of the agent is there yet
		}
	}
	list := func() ([]upload, error) {
		if v.agentClosed != nil {
			if err := v.agentClosed(); err != nil {
				return nil, err
			}
		}
		return append(v.listLeft(), artifacts...), nil
	}
	state := filepath.Join(v.dir, StateFile)
	if v.step.Verifier.Separate || v.control {
		state, dirs = "", nil
	}
	if err := restoreState(ctx, s, state, hidden, dirs, list, &v.left); err != nil {
		return v.blame(err)
	}
	own := []upload{{to: logsDir + "/verifier"}}
	if tests := v.step.Verifier.Tests; tests != "" {
		own = append(own, upload{to: testsDir, from: tests, executable: "test.sh"})
	}
	return v.blame(uploadAll(ctx, s, uploads(own...)))
}

// imageDir has the image's programs. A workspace's symlinks may lead there.
const imageDir = "/usr"

// listLeft returns the directories to bring to the verifier besides the agent's
// changes.
func (v *verification) listLeft() []upload {
	uploads := []upload{{to: logsDir + "/agent"}, {to: logsDir + "/artifacts"}}
	if v.control {
		return uploads
	}
	if artifacts := filepath.Join(v.dir, ArtifactsDir); fileExists(artifacts) {
		uploads = append(uploads, upload{to: logsDir + "/artifacts", from: artifacts, skip: v.isCacheOfArtifact})
	}
	if v.step.Verifier.Separate {
		return uploads
	}
	if agent := filepath.Join(v.dir, AgentDir); fileExists(agent) {
		uploads = append(uploads, upload{to: logsDir + "/agent", from: agent})
	}
	return uploads
}

// declaredArtifacts returns uploads of the task's artifacts that the agent made, to
// their original paths.
func (v *verification) declaredArtifacts(p place) []upload {
	dir := filepath.Join(v.dir, ArtifactsDir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil // there are none
	}
	defer func() { _ = root.Close() }() // only read
	var list []upload
	for _, a := range v.step.Artifacts {
		name := a.Name()
		if _, err := root.Lstat(name); err != nil { // or a symlink leads out
			continue
		}
		list = append(list, upload{to: a.Path(p.dirOf()), from: filepath.Join(dir, name), skip: isCacheBelow})
	}
	return list
}

// resolvePaths prints each path with the symlinks of its parent directories resolved. A
// path that ends in /. is resolved completely.
const resolvePaths = `for path; do
	dir=${path%/*}
	until cd -P -- "${dir:-/}" 2>/dev/null; do dir=${dir%/*}; done
	printf '%s\n' "$(pwd -P)${path#"$dir"}"
done`

// resolveUploads redirects uploads along the symlinks of the sandbox's image, such as
// /var/run to /run, because nothing is written through symlinks. None is redirected to
// the harness's directories. The sandbox must not have anything of the agent yet.
func resolveUploads(ctx context.Context, s *runner.Session, list []upload) ([]upload, error) {
	if len(list) == 0 {
		return nil, nil
	}
	argv := []string{"/bin/sh", "-c", resolvePaths, "sh"}
	for _, u := range list {
		if info, err := os.Lstat(u.from); err == nil && info.IsDir() {
			u.to += "/."
		}
		argv = append(argv, u.to)
	}
	out := limits.Head{Size: maxReward}
	if err := executeCommand(ctx, s, "find where artifacts belong", runner.UserCommand{Argv: argv, Stdout: &out}); err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != len(list) {
		return nil, fmt.Errorf("find where artifacts belong: %d paths for %d artifacts", len(lines), len(list))
	}
	for i, line := range lines {
		if to := path.Clean(line); path.IsAbs(to) && !isHarness(to) {
			list[i].to = to
		}
	}
	return list, nil
}

// isCacheBelow reports whether a relative path is a cache's, wherever it lies.
func isCacheBelow(name string) bool { return isCache("/./" + name) }

// isCacheOfArtifact reports whether a relative path in the artifacts is a cache's.
// Artifacts that the task declares are not, whatever their names.
func (v *verification) isCacheOfArtifact(name string) bool {
	for _, a := range v.step.Artifacts {
		if rest, ok := strings.CutPrefix(name, a.Name()); ok && (rest == "" || rest[0] == '/') {
			name = strings.TrimPrefix(rest, "/")
		}
	}
	return isCacheBelow(name)
}

// harnessDirs are the harness's directories in sandboxes.
var harnessDirs = []string{testsDir, logsDir, solutionDir}

func isHarness(name string) bool {
	return slices.ContainsFunc(harnessDirs, func(dir string) bool { return isWithin(name, dir) })
}

// blame classifies an error of bringing the agent's files. A sandbox that could not
// start is not the agent's failure.
func (v *verification) blame(err error) error {
	return blame(v.acted && classOf(err) != SandboxStart, StateUnreadable, err)
}

// runTests runs test.sh and reads its reward. Its exit status doesn't matter.
func (v *verification) runTests(ctx context.Context, s *runner.Session, p place, dir string) error {
	if _, err := v.execVerifier(ctx, s, p, dir, "/bin/sh", "-c", "exec "+testsDir+"/test.sh"); err != nil {
		return err
	}
	output := filepath.Join(dir, OutputFile)
	kept, err := os.ReadFile(output)
	if err == nil {
		err = downloadPath(ctx, s, logsDir+"/verifier", ".", dir, nil, &v.left)
	}
	if err == nil { // the harness's file has this name
		err = errors.Join(workspace.RemoveTree(output), os.WriteFile(output, kept, 0o644))
	}
	if err != nil {
		return blame(v.acted, VerifierCrashed, err)
	}
	v.rewards, err = ReadRewards(dir)
	if reward, ok := errors.AsType[*RewardError](err); ok {
		return &failure{class: reward.Class, err: reward}
	}
	return blame(v.acted, RewardUnparsable, err)
}

// runCommand runs a command, or test.sh. Its exit status is the reward.
func (v *verification) runCommand(ctx context.Context, s *runner.Session, p place, dir string) error {
	script := cmp.Or(v.step.Verifier.Command, "sh "+testsDir+"/test.sh")
	status, err := v.execVerifier(ctx, s, p, dir, "/bin/sh", "-c", script)
	if err != nil {
		return err
	}
	reward := 0.0
	if status.Success() {
		reward = 1
	}
	v.rewards = map[string]float64{task.RewardKey: reward}
	return nil
}

func (v *verification) execVerifier(ctx context.Context, s *runner.Session, p place, dir string, argv ...string) (sandbox.ExitStatus, error) {
	output, err := v.createOutput(filepath.Join(dir, OutputFile))
	if err != nil {
		return sandbox.ExitStatus{}, &infraError{Machine, err}
	}
	defer func() { _ = output.Close() }() // it is for people
	c := p.newCommand(argv...)
	// Let one shell redirect, so that both streams are in order.
	c.Stdout = output
	c.Stderr = output
	c.Env = v.step.Verifier.Env
	c.Timeout = v.step.Verifier.Time
	c.Argv = append([]string{"/bin/sh", "-c", `exec "$@" 2>&1`, "sh"}, c.Argv...)
	ended, err := s.Exec(ctx, c)
	if ended.Status.OOMKilled {
		v.doubts[string(limits.KindMemory)] = doubtLimit
	}
	switch {
	case err != nil:
		if limit, ok := errors.AsType[*limits.ExceededError](err); ok {
			v.doubts[string(limit.Kind)] = doubtLimit
			return ended.Status, &failure{class: VerifierCrashed, err: limit}
		}
		return ended.Status, blame(v.acted, VerifierCrashed, err)
	case ended.Status.TimedOut:
		v.doubts[string(limits.KindWallTime)] = doubtLimit
		return ended.Status, errVerifierTime
	}
	return ended.Status, nil
}

// Verify verifies a finished trial again from its directory, and writes the verifier's
// files to out. It returns the result with new rewards, outcome and class. An
// infrastructure outcome is this verification's.
func (t *Trials) Verify(ctx context.Context, trial Trial, was Result, dir, out string) Result {
	r := &trialRun{Trials: t, trial: trial, dir: dir, result: was}
	r.result.Reward = nil
	r.result.Rewards = nil
	r.result.Class = ""
	r.result.Cause = ""
	r.result.Steps = nil
	r.result.Faults = nil
	r.result.Sessions = nil
	r.result.LeftOut = nil
	r.result.Started = time.Now().UTC()
	err := r.verifyAgain(ctx, was, out)
	if ctx.Err() != nil {
		r.result.Outcome = Cancelled
		return r.result
	}
	r.setOutcome(err)
	r.redactCauses()
	r.result.Finished = time.Now().UTC()
	return r.result
}

func (r *trialRun) verifyAgain(ctx context.Context, was Result, out string) error {
	definition := r.trial.Definition
	var err error
	if r.place, err = r.places.preparePlace(ctx, definition.Environment); err != nil {
		return &infraError{ImageUnavailable, err}
	}
	for i := range definition.Steps {
		step, dir := &definition.Steps[i], r.stepDir(i)
		for _, d := range []string{r.dir, filepath.Dir(dir), dir} { // they may come from others
			if err := CheckNames(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &infraError{Machine, err}
			}
		}
		if !fileExists(filepath.Join(dir, StateFile)) {
			if was.Class != "" { // the reason why the agent didn't get this far
				return &failure{was.Class, errors.New(was.Cause), was.Outcome == Suspect}
			}
			return &infraError{Machine, errors.New("the state that the agent left was not kept: " + StateFile + " is missing")}
		}
		to := out
		if definition.MultiStep {
			to = filepath.Join(out, StepsDir, filepath.Base(dir))
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return &infraError{Machine, err}
		}
		v := verification{Trials: r.Trials, trial: r.trial, step: step, dir: dir, out: to, place: r.place, acted: r.trial.Agent != Nop}
		err := v.verifyStep(ctx)
		result := StepResult{Name: step.Name, Rewards: v.rewards, Limit: was.Limit, LeftOut: v.left.names}
		if definition.MultiStep && i < len(was.Steps) {
			result.Limit = was.Steps[i].Limit
		}
		r.result.Sessions = append(r.result.Sessions, v.sessions...)
		err = result.note(err)
		r.steps = append(r.steps, result)
		if err != nil {
			return err
		}
	}
	return nil
}
