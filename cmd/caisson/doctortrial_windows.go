package main

func sameFileSystem(string, string) bool { return true }

func takeOwner(string, string) error { return nil }
