//go:build linux

package server

const childEnv = "CAISSON_TEST_SERVER_CHILD"

func child() int { return 1 }
