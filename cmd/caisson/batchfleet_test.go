package main

import "testing"

// TestIdleText: the text that a coordinator prints each minute has no password.
func TestIdleText(t *testing.T) {
	f := fleetFlags{Servers: "me:hunter22@a:4222,nats://me:hunter22@b:4222", Results: "s3://bucket/x"}
	want := "no worker takes trials: start workers with caisson batch worker --nats a:4222,nats://b:4222 --results s3://bucket/x"
	if got := f.idleText(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
