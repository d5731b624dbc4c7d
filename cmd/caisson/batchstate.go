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
	// stateDir is the directory of a batch for the state of its sandboxes. It has proofFile.
	stateDir  = "state"
	proofFile = "proof"
	// stateKeyFile is the file of the user's state directory with the key of the proofs.
	stateKeyFile = "batch.key"
)

// ownsState reports whether this user's Caisson made the state directory of a batch, at the place
// where it is. Any other one may have come with somebody else's results. It must not be acted on:
// what it says about containers makes runtimes run programs.
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

// warnOfState tells the user of a state directory that is not used.
func (a *app) warnOfState(dir string) {
	if _, err := os.Lstat(dir); err == nil && !a.environ.ownsState(dir) {
		a.warn("nothing in " + dir + " is used: your Caisson did not make it there. If it was copied from a batch that was killed, the same command in the original removes the sandboxes that are left")
	}
}

// stateProof returns the content of the proof of a state directory: a code of its device and inode.
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

// stateKey returns the key of the proofs, which it makes if it is missing.
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

// claimState makes the state directory of a batch, unless this user's Caisson made it before, and
// reports whether it did. One that is not this user's is removed. A user without a state directory
// gets no proof.
func (e environ) claimState(dir string) (made bool, err error) {
	if e.ownsState(dir) {
		return false, nil
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo") // only Linux has it, and mounts
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
