//go:build !linux

package main

func kernelFeatures() []feature { return nil }

func tryUserNamespace() error { return nil }
