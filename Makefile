# The developer's few commands. `make install` first, in a virtual environment.
.PHONY: install test slow lint docs figure lowest ci clean

install:  ## this tree, editable, with everything for tests and pages (shtns needs a compiler and FFTW, see README)
	SHTNS_OPENMP=0 pip install -e '.[shtns,test,docs]'

test:  ## the tests of every change
	pytest -n 2

slow:  ## the tests that take minutes
	pytest -n 2 -m slow

lint:
	ruff check .

docs:  ## the pages that are made from the code, and the site in build/docs; every warning is an error
	python docs/make_reference.py
	sphinx-build -W --keep-going -q docs build/docs

figure:  ## the picture in the README
	python postprocess/readme_figure.py

lowest:  ## the tests with the lowest versions that setup.py allows
	python3 -m venv build/lowest
	build/lowest/bin/pip install --quiet \
	    $$(grep -o '"[A-Za-z0-9_]*-*[A-Za-z0-9_]*>=[^"]*"' setup.py | grep -v -e shtns -e '">=' | tr -d '"' | sed 's/>=/==/')
	PYTHONPATH=. build/lowest/bin/python -m pytest -n 2

ci:  ## all of it, from system packages on
	bash .ci/run

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
