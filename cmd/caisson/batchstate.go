package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// stateDir is the subdirectory of a batch with the state of its sandboxes. It
	// contains proofFile.
	stateDir  = "state"
	proofFile = "proof"
	// stateKeyFile, in the user's state directory, has the key of the proofs.
	stateKeyFile = "batch.key"
)

// ownsState reports whether this user's Caisson made this state directory of a batch at
// this place. Any other may have come with somebody else's results and must not be
// used: its notes about containers make runtimes run programs.
func (e environ) ownsState(dir string) bool {
	proof, err := e.stateProof(dir)
	if err != nil {
		return false
	}
	name := filepath.Join(dir, proofFile)
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<10 {
		return false
	}
	text, err := os.ReadFile(name)
	return err == nil && hmac.Equal(text, proof)
}

// warnOfState warns about a state directory that is not used.
func (a *app) warnOfState(dir string) {
	if _, err := os.Lstat(dir); err == nil && !a.environ.ownsState(dir) {
		a.warn("nothing in " + dir + " is used: your Caisson did not make it there. If it was copied from a batch that was killed, the same command in the original removes the sandboxes that are left")
	}
}

// stateProof returns the proof for a state directory: a MAC of its device and inode.
func (e environ) stateProof(dir string) ([]byte, error) {
	key, err := e.stateKey()
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	code := hmac.New(sha256.New, key)
	_, err = fmt.Fprintln(code, st.Dev, st.Ino)
	return fmt.Appendf(nil, "%x\n", code.Sum(nil)), err
}

// stateKey returns the key of the proofs. It makes a missing one.
func (e environ) stateKey() ([]byte, error) {
	state := e.stateDir()
	if state == "" {
		return nil, errors.New("there is no state directory")
	}
	name := filepath.Join(state, stateKeyFile)
	key, err := os.ReadFile(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(state, stateKeyFile+".*")
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(rand.Text() + rand.Text())
	if err = errors.Join(err, f.Close()); err == nil {
		if err = os.Link(f.Name(), name); errors.Is(err, fs.ErrExist) { // another process was faster
			err = nil
		}
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// claimState makes a batch's state directory and reports whether it did. It keeps one
// that this user's Caisson made, and removes any other. Without a user's state
// directory, the new one gets no proof.
func (e environ) claimState(dir string) (made bool, err error) {
	if e.ownsState(dir) {
		return false, nil
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo") // Linux only, as are mounts
	if strings.Contains(string(mounts), " "+strings.ReplaceAll(dir, " ", `\040`)+"/") {
		return false, fmt.Errorf("%s is not a state directory of this user, and something is mounted in it", dir)
	}
	if err := errors.Join(workspace.RemoveTree(dir), os.Mkdir(dir, 0o700)); err != nil {
		return false, err
	}
	proof, err := e.stateProof(dir)
	if err != nil {
		return true, nil //nolint:nilerr // the state is removed unread if this process is killed
	}
	return true, os.WriteFile(filepath.Join(dir, proofFile), proof, 0o600)
}
