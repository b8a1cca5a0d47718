module github.com/purelb/purelb-operator

go 1.26.0
