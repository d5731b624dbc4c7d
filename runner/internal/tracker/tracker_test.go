package tracker

import (
	"context"
	"errors"
	"testing"
)

// TestWaitRecorded: a caller waits for the end of the recording or of its context.
func TestWaitRecorded(t *testing.T) {
	user, failed := errors.New("user"), errors.New("not recorded")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(user)
	r := newRecording()
	if err := r.WaitRecorded(ctx); !errors.Is(err, user) || r.isDone() {
		t.Errorf("a cancelled call: %v, done %v", err, r.isDone())
	}
	r.runInBackground(func() error { return failed })
	if err := r.WaitRecorded(t.Context()); !errors.Is(err, failed) || !r.isDone() {
		t.Errorf("after a failed recording: %v", err)
	}
	r = newRecording()
	r.runInBackground(func() error { return nil })
	if err := r.WaitRecorded(t.Context()); err != nil {
		t.Errorf("after the recording: %v", err)
	}
}
